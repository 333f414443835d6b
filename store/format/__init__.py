"""What a store holds, and how its bytes lie. Pure: opens no file, and needs no torch."""
