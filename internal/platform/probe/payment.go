package probe

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"math"
	"strconv"
	"strings"
)

// Price is what an endpoint asks for one request. The zero value is no price, or none that is understood.
type Price struct {
	Amount   float64
	Currency string
}

// stablecoins are tokens whose currency and decimals are known, by their address on their chain: USDC on Base,
// Avalanche, Polygon and Solana, each with 6 decimals. Read on 2026-11-29. An amount in another token says nothing.
func stablecoins() []string {
	return []string{
		"0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913",
		"0xB97EF9Ef8734C71904D8002F8b6Bc66Dd9c48a6E",
		"0x3c499c542cEF5E3811e1192ce70d8cC03d5c3359",
		"EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v",
	}
}

// price reads the lowest price of an answer 402 by x402: of version 2 from the header, of version 1 from the body.
func (a *answer) price() Price {
	var asks struct {
		Accepts []struct{ Scheme, Asset, Amount, MaxAmountRequired string }
	}
	text := a.body
	if header := a.header.Get("Payment-Required"); header != "" {
		text, _ = base64.StdEncoding.DecodeString(header)
	}
	if json.NewDecoder(bytes.NewReader(text)).Decode(&asks) != nil {
		return Price{}
	}
	least := math.Inf(1)
	for _, x := range asks.Accepts {
		n, err := strconv.ParseUint(cmp.Or(x.Amount, x.MaxAmountRequired), 10, 64)
		if err != nil || x.Scheme != "exact" {
			continue
		}
		for _, token := range stablecoins() {
			if strings.EqualFold(token, x.Asset) {
				least = min(least, float64(n)/1e6)
			}
		}
	}
	if math.IsInf(least, 1) {
		return Price{}
	}
	return Price{least, "USDC"}
}
