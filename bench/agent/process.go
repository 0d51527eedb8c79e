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
	asking  = 100 * time.Millisecond // between two questions whether it answers
)

// memory is what of a process is in memory, in bytes.
type memory struct {
	resident  int64
	anonymous int64 // of it, what no file backs
}

// memoryOf is nothing on other systems than Linux.
func memoryOf(pid int) (m memory) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return m
	}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64) // 0 for what is no number
		switch name {
		case "VmRSS":
			m.resident = kib << 10
		case "RssAnon":
			m.anonymous = kib << 10
		}
	}
	return m
}
