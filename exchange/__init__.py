"""What coordinator and agents agree on, and the two places where they meet: a queue, a table."""
