"""The test kit that ships with Leveret. Import its modules one by one; `disk` is a disk that loses power."""
