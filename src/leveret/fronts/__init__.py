"""One package for each protocol that clients speak. A front translates between its protocol and
`leveret.broker`, and knows no other front."""
