package discoverytest_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/blackhole/blackhole/internal/discovery/discoverytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestInProcess(t *testing.T) {
	discoverytest.Run(t, func(_ testing.TB, h *discoverytest.Harness) discoverytest.API {
		return discoverytest.InProcess(h.Service)
	})
}
