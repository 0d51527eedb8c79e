package query_test

import (
	"fmt"

	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
)

func ExampleCompile() {
	q, err := queries.ParseJSON([]byte(`{"type": "storage", "countries": ["de", "FR", "DE"], "max_price": 0.06}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	plan, err := queries.Compile(q, queries.Defaults{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, line := range plan.Describe() {
		fmt.Println(line)
	}
	// Output:
	// type storage
	// only with country of DE, FR, max_price 0.06
	// prices compared in USDC per-gb-month only
	// health usable
	// by score, at most 100
}

func ExampleCompile_refused() {
	_, err := queries.Compile(query.Query{Type: "storage", Sort: "cheapest"}, queries.Defaults{})
	fmt.Println(fault.FieldOf(err))
	fmt.Println(fault.Message(err))
	// Output:
	// sort
	// must be one of score, distance, price, uptime, response_time, random, stable
}
