"""Who may let an effect happen: policies, requests, decisions and grants. Plugs into the gates of `runs`."""
