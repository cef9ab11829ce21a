"""What ``.timeline`` does over a connection: looking back, comparing, forking, changing course."""
