// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm

import java.util.concurrent.{CompletableFuture, TimeUnit, TimeoutException}

/**
 * Clock that stands still until a test moves it, unless it ticks. Tasks run on the thread that
 * moves it, each at its time.
 */
final class ManualClock extends Clock {
  private var now = 0L
  private var tasks = Vector.empty[(Long, () => Unit)]
  private var waiting = 0

  /** Nanoseconds by which each reading moves the clock. */
  @volatile var tickNanos = 0L

  override def nanoTime: Long = synchronized {
    now += tickNanos
    now
  }

  override def after(nanos: Long)(task: => Unit): Unit =
    synchronized(tasks :+= ((now + nanos, () => task)))

  override def await(done: CompletableFuture[_], deadline: Long): Unit = {
    done.whenComplete((_, _) => synchronized(notifyAll()))
    synchronized {
      waiting += 1
      notifyAll()
      while (!done.isDone && now < deadline) wait()
      waiting -= 1
    }
    if (!done.isDone) throw new TimeoutException
    done.get()
  }

  /** Number of tasks whose time has not come. */
  def pending: Int = synchronized(tasks.size)

  /** Wait until a thread waits in [[await]]. */
  def awaitWaiter(): Unit = synchronized(while (waiting == 0) wait())

  def advance(seconds: Long): Unit = {
    val end = nanoTime + TimeUnit.SECONDS.toNanos(seconds)
    Iterator.continually(nextTask(end)).takeWhile(_.isDefined).flatten.foreach(_.apply())
    synchronized {
      now = end
      notifyAll()
    }
  }

  private def nextTask(end: Long): Option[() => Unit] = synchronized {
    val due = tasks.filter(_._1 <= end).sortBy(_._1).headOption
    due.foreach { task =>
      tasks = tasks.filterNot(_ eq task)
      now = task._1
    }
    due.map(_._2)
  }
}
