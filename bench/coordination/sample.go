package main

import (
	"fmt"
	"time"
)

// Operations of tasks. The driver of etcd uses the same names.
const (
	opLock      = "lock"
	opContended = "contended"
	opKeepAlive = "keepalive"
	opRead      = "read"
	opWatch     = "watch"
	opKill      = "kill"
)

// task is one unit of work for a system.
type task struct {
	Op       string        `json:"op"`
	Clients  int           `json:"clients"`
	Duration time.Duration `json:"duration"`
	Batch    int           `json:"batch"` // leases in a message; writes in a second
	Run      int           `json:"run"`   // makes names differ
}

func (t task) label() string {
	if t.Op == opKeepAlive && t.Batch > 1 {
		return fmt.Sprintf("%s, %d leases a message", t.Op, t.Batch)
	}
	return t.Op
}
