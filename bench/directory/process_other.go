//go:build !linux

package main

import (
	"syscall"
	"time"
)

func orphanless() *syscall.SysProcAttr { return nil }

func used() time.Duration { return 0 }
