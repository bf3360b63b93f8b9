// Package lmcache reads the keys that LMCache gives its chunks, and computes the chunks' names from
// token ids.
//
// LMCache cuts a prompt into chunks, usually of 256 tokens, and stores each full chunk under a key:
//
//	MODEL@WORLD@WORKER@NAME@DTYPE          one layer group of one worker, over resp:// and s3://
//	MODEL@WORLD@WORKER@NAME@DTYPE@LAYER    one layer, if LMCache works layer by layer
//
// Its redis:// client adds kv_bytes and metadata to each key, and stores both. MODEL is the
// engine's --model, WORLD the number of workers, and DTYPE the data type of the cache, by LMCache's
// name.
//
// NAME follows from the tokens if LMCache's pre_caching_hash_algorithm is sha256_cbor and the
// engine's PYTHONHASHSEED is known (Next). A key names neither LoRA adapter nor cache salt nor the
// revision of the weights, so LMCache itself takes the chunks of one for those of another. MODEL
// has nothing in common with the name under which clients ask for the model.
//
// The forms are those of LMCache 0.5.6. Its keys with tags of the request, and those of its
// multiprocess server (MODEL@RANK@GROUP@HASH), have other contents and are refused.
package lmcache
