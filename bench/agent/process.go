package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	serving = 60 * time.Second       // from a start to the first answer
	asking  = 100 * time.Millisecond // between two attempts
)

// memory is the memory of a process in bytes.
type memory struct {
	resident  int64
	anonymous int64 // part without a file behind it
}

// memoryOf is zero on systems other than Linux.
func memoryOf(pid int) (m memory) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return m
	}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64) // 0 for an invalid number
		switch name {
		case "VmRSS":
			m.resident = kib << 10
		case "RssAnon":
			m.anonymous = kib << 10
		}
	}
	return m
}
