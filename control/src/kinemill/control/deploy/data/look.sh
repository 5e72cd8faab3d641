# Says what the node is, as name=value lines; plain sh, for the node may have no Python and a full disk.
printf 'kinemill_look=1\n'
printf 'hostname=%s\n' "$(hostname -s 2>/dev/null || uname -n)"
printf 'clock_s=%s\n' "$(date +%s)"
df -Pk / 2>/dev/null | awk 'NR==2 {print "free_kb=" $4}'
printf 'addresses=%s\n' "$(hostname -I 2>/dev/null)"
for python in python3 /usr/bin/python3; do
  if command -v "$python" >/dev/null 2>&1; then
    "$python" -c 'import sys; print("python=%d.%d" % sys.version_info[:2])' 2>/dev/null && break
  fi
done
exit 0
