"""What must hold in every history. Not: how histories are chosen."""
