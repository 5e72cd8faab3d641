#!/bin/sh
# Finishes a node image; $1 is its root. Runs once, when the image is built.
set -eu
root=$1

# Each node gets its own identity and keys when it is made; an image carries none.
: >"$root/etc/machine-id"
rm -f "$root"/etc/ssh/ssh_host_*
rm -f "$root/etc/munge/munge.key"
rm -f "$root/etc/hostname" "$root/etc/resolv.conf"

# Services that only a cluster's own configuration can start: unconfigured ones hold the boot.
for unit in slurmd slurmctld slurmdbd slurmrestd mariadb munge; do
  if [ -e "$root/lib/systemd/system/$unit.service" ]; then
    chroot "$root" systemctl --quiet disable "$unit.service"
  fi
done
# Nothing here has hardware, disks or the world to look after.
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer \
  systemd-udevd.service systemd-udev-trigger.service systemd-timesyncd.service systemd-networkd-wait-online.service \
  systemd-firstboot.service nftables.service; do
  chroot "$root" systemctl --quiet mask "$unit" 2>/dev/null || true
done
chroot "$root" systemctl --quiet enable ssh.service 2>/dev/null || true
mkdir -p "$root/var/log/journal"

# An ordinary user whose jobs tests run, with the same id on every node.
chroot "$root" useradd --create-home --uid 2000 --shell /bin/bash researcher

# A small database that is ready at its first start; slurm comes in over the socket, without a password.
if [ -d "$root/etc/mysql/mariadb.conf.d" ]; then
  cat >"$root/etc/mysql/mariadb.conf.d/90-sandbox.cnf" <<'CNF'
[mariadbd]
innodb_buffer_pool_size = 64M
innodb_log_file_size = 8M
innodb_flush_log_at_trx_commit = 0
innodb_lock_wait_timeout = 900
skip-name-resolve
CNF
  chroot "$root" sh -eu -c '
    install -d -o mysql -g mysql /run/mysqld
    printf "%s\n" "FLUSH PRIVILEGES;" "CREATE DATABASE slurm_acct_db;" \
      "CREATE USER slurm@localhost IDENTIFIED VIA unix_socket;" \
      "GRANT ALL ON slurm_acct_db.* TO slurm@localhost;" |
      mariadbd --user=mysql --bootstrap'
fi

# Lists from the build's mirror would be stale in a node, and a fresh time stamp would hide it.
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* "$root/etc/apt/sources.list"
mkdir -p "$root/var/lib/apt/lists/partial" "$root/var/cache/apt/archives/partial"
touch -d @0 "$root/var/lib/apt/lists"
rm -f "$root"/var/log/*.log "$root"/var/log/apt/*
