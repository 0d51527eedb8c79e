package httpapi

import (
	"net/http"
	"testing"
)

func conforming(testing.TB) func(http.Handler) http.Handler {
	return func(h http.Handler) http.Handler { return h }
}
