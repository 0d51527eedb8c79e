package agenttest

import "testing"

func TestInProcess(t *testing.T) {
	Run(t, func(testing.TB) API { return InProcess(New()) })
}
