package sparkdl.comm.chunks

import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._

import sparkdl.comm.Clock

/** Timer that ends fetches at their deadlines. It keeps one or two tasks in the clock, not one for each fetch. */
private[chunks] final class DeadlineTimer(clock: Clock) {
  private val pending = ConcurrentHashMap.newKeySet[PendingFetch]
  private var nextCheck = Long.MaxValue

  /** Fetches in progress. */
  def count: Int = pending.size

  def add(fetch: PendingFetch): Unit = {
    pending.add(fetch)
    synchronized(if (fetch.deadline < nextCheck) checkAt(fetch.deadline))
  }

  def remove(fetch: PendingFetch): Unit = pending.remove(fetch)

  def foreach(act: PendingFetch => Unit): Unit = pending.forEach(fetch => act(fetch))

  private def checkAt(time: Long): Unit = {
    clock.after(math.max(0, time - clock.nanoTime))(check())
    nextCheck = time
  }

  private def check(): Unit = {
    val now = clock.nanoTime
    foreach(fetch => if (fetch.deadline <= now) fetch.expire())
    synchronized {
      if (now >= nextCheck) {
        nextCheck = Long.MaxValue
        pending.asScala.map(_.deadline).reduceOption(_ min _).foreach(checkAt)
      }
    }
  }
}
