//go:build !unix

package child

import "time"

// Used is 0 on this system.
func Used() time.Duration { return 0 }
