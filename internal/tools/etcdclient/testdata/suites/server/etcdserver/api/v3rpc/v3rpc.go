// Package v3rpc has what etcd's tests use of its server.
package v3rpc

import "time"

// GetProgressReportInterval returns when a watch reports progress.
func GetProgressReportInterval() time.Duration { return 10 * time.Second }

// SetProgressReportInterval does nothing.
func SetProgressReportInterval(time.Duration) {}
