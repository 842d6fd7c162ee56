//! The built-in tools, each through one table.
