"""What ``.runs`` does over a connection: runs, their boundaries and evidence, leases."""
