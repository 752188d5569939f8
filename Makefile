.PHONY: test check bench torture
test check bench torture:
	@./hf $@ $(ARGS)
