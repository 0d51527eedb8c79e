//go:build !linux

package dnsapi

import "syscall"

// shares reports whether the system distributes clients among sockets with the same address.
const shares = false

func share(string, string, syscall.RawConn) error { return nil }
