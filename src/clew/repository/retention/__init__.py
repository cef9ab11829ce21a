"""What ``.retention`` does over a connection: cleaning up, checking, moving a thread."""
