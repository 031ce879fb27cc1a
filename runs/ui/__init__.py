"""The pages that watch runs: list and inspector."""
