"""The appliance under test: its ledgers, its capacity, its policy."""
