package ctltest

// FleetPage is a router's page with two nodes, one of which fails.
const FleetPage = `{"rev":3,"stale":true,"nodes":[{"id":"n1","address":"http://h:1","models":["m"],"state":"healthy","eligible":true,
"in_flight":2,"max_concurrent":64,"signals":{"from":"metrics","queue_depth":1,"cpu_pct":50,"power_watts":300}},` +
	`{"id":"n2","address":"http://h:2","models":["m"],"state":"open","eligible":false,"reason":"refused",` +
	`"in_flight":3}],"models":[],"index_blocks":9}`

// MetricsPage has the counters of the same router.
const MetricsPage = `# TYPE cgn_router_requests_total counter
cgn_router_requests_total{api="chat",model="m",code="200"} 5
cgn_router_requests_total{api="chat",model="m",code="404"} 2
# TYPE cgn_router_prompt_tokens_total counter
cgn_router_prompt_tokens_total{model="m"} 100
# TYPE cgn_router_cached_tokens_total counter
cgn_router_cached_tokens_total{model="m"} 40
# TYPE cgn_router_prediction_error_ratio histogram
cgn_router_prediction_error_ratio_bucket{node="n1",le="+Inf"} 4
cgn_router_prediction_error_ratio_sum{node="n1"} 0.5
cgn_router_prediction_error_ratio_count{node="n1"} 4
`
