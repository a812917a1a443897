"""Methods of other papers beside those of Lariax, on the same problems, in the same draws."""
