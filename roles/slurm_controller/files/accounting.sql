SELECT 'made' FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM mysql.global_priv WHERE User = 'slurm' AND Host = 'localhost')
  OR NOT EXISTS (SELECT 1 FROM information_schema.schemata WHERE schema_name = 'slurm_acct_db');
CREATE DATABASE IF NOT EXISTS slurm_acct_db;
CREATE USER IF NOT EXISTS slurm@localhost IDENTIFIED VIA unix_socket;
GRANT ALL ON slurm_acct_db.* TO slurm@localhost;
