"""The classes with which programs are built: streams, tables, joins, windows."""
