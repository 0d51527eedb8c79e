//go:build !unix

package kit

import "time"

// Used is 0 on this system.
func Used() time.Duration { return 0 }
