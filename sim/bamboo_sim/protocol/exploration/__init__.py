"""Which histories are explored, exhaustively or at random, and how they are shrunk."""
