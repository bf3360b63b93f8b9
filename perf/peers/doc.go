// Package peers compares the routing quality of KV-aware routers on engines that another project
// simulates.
//
// The engines are workers of dynamo.mocker, which simulate prefill, batching, paged KV memory,
// eviction and KV events in real time. Each worker stands behind a frontend of its own, so every
// router gets the same OpenAI endpoints. Dynamo's router gets its native workers with the same
// settings.
//
// A run plays one window of a trace, or a burst, through one router. Every run has fresh workers
// and a fresh router. The contestants take turns in an order that rotates, and a comparison pairs
// the runs of one turn. A run is void if the host or the client was too busy for its figures.
package peers
