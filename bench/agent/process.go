package main

import "time"

const (
	serving = 60 * time.Second       // from a start to the first answer
	asking  = 100 * time.Millisecond // between two attempts
)
