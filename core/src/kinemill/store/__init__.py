"""Object stores behind `kinemill.contracts.Store`. Importing this loads no client library."""
