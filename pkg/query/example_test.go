package query_test

import (
	"fmt"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
)

func ExampleCompile() {
	q, err := query.ParseJSON([]byte(`{"type": "storage", "countries": ["de", "FR", "DE"], "max_price": 0.06}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	plan, err := query.Compile(q, query.Defaults{})
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
	_, err := query.Compile(query.Query{Type: "storage", Sort: "cheapest"}, query.Defaults{})
	fmt.Println(fault.FieldOf(err))
	fmt.Println(fault.Message(err))
	// Output:
	// sort
	// must be one of score, distance, price, uptime, response_time, random, stable
}
