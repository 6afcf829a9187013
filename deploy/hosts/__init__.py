"""Files to install agents on hosts, and the archive for hosts without internet."""
