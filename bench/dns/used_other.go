//go:build !unix

package main

import "time"

func used() time.Duration { return 0 }
