package sparkdl.comm.ps

import java.util.ArrayDeque
import java.util.concurrent.Executor

/** Executor that runs tasks one at a time, in order. It occupies a thread of `pool` only while it has tasks. */
private[ps] final class SerialExecutor(pool: Executor) extends Executor {
  private val waiting = new ArrayDeque[Runnable]
  private var isRunning = false

  override def execute(task: Runnable): Unit = synchronized {
    waiting.add(task)
    if (!isRunning) {
      pool.execute(() => runAll())
      isRunning = true
    }
  }

  private def runAll(): Unit = Iterator.continually(next()).takeWhile(_.isDefined).flatten.foreach(_.run())

  private def next(): Option[Runnable] = synchronized {
    val task = Option(waiting.poll())
    isRunning = task.isDefined
    task
  }
}
