"""`python -m agentgym_trainer` is `train`: what a launcher of many processes starts."""

from agentgym_trainer.cli import main

if __name__ == "__main__":
    main()
