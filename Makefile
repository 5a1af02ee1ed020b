.PHONY: test ci model

test: # what the README says
	go test -race -timeout 15m ./...

ci: # every gate
	bash .ci/run

model: # every case of the models of the protocols, ten minutes and 5 GB
	cd docs/model && go run .
