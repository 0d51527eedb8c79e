//go:build !linux

package p2p

import "time"

func setUserTimeout(uintptr, time.Duration) {}
