// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

/** Memory files of other processes, as Python workers have them. */
object Memory {

  /** Run `body` with the path of another process's memory file, as a worker has one. */
  def withPath[T](
      bytes: Long,
      seals: String = "F_SEAL_SHRINK F_SEAL_GROW F_SEAL_SEAL"
  )(body: String => T): T = {
    val worker = new ProcessBuilder("python3", "-c", Worker, bytes.toString, seals)
      .redirectError(ProcessBuilder.Redirect.INHERIT)
      .start()
    try body(worker.inputReader.readLine())
    finally {
      worker.getOutputStream.close() // the worker ends
      worker.waitFor()
    }
  }

  /** Program of the worker: Java cannot make a memory file. */
  private val Worker =
    """import fcntl, os, sys
      |fd = os.memfd_create("sparkdl", os.MFD_ALLOW_SEALING)
      |os.ftruncate(fd, int(sys.argv[1]))
      |fcntl.fcntl(fd, fcntl.F_ADD_SEALS, sum(getattr(fcntl, seal) for seal in sys.argv[2].split()))
      |print(f"/proc/{os.getpid()}/fd/{fd}", flush=True)
      |sys.stdin.read()""".stripMargin
}
