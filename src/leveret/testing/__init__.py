"""The test kit that ships with Leveret. Import its modules directly, such as `leveret.testing.broker`."""
