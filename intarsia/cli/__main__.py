from intarsia.cli import main

main()
