module rallypoint

go 1.26
