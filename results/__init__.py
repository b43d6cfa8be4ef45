"""From stored records to numbers, tables and pictures. Reads no clock and no network."""
