package sparkdl.comm.ps

import java.util.concurrent.{
  CompletableFuture,
  CompletionException,
  ConcurrentHashMap,
  ExecutionException,
  Executor,
  TimeoutException
}
import java.util.function.{Function => JFunction}

import sparkdl.comm.CommException
import sparkdl.comm.transport.BlockServer

/** What comes to one rank: the notices of the others, their blocks, and the failure that ends all waiting for them. */
private[ps] final class Incoming(job: Long, rank: Int, node: PsNode) {
  private val notices = new ConcurrentHashMap[(Notice.Kind, Int, Int, Long), CompletableFuture[Notice]]
  private val failed = new CompletableFuture[Nothing]

  /** By rank: what starts fetches from it. To connect may take long, and one thread is enough for that. */
  private val starters = new ConcurrentHashMap[Int, Executor]

  /** Completes when rank `from` has published a block. */
  def notice(kind: Notice.Kind, from: Int, bucket: Int, version: Long): CompletableFuture[Notice] =
    notices.computeIfAbsent((kind, from, bucket, version), _ => new CompletableFuture[Notice])

  def forget(kind: Notice.Kind, from: Int, bucket: Int, version: Long): Unit =
    notices.remove((kind, from, bucket, version))

  /** Ends every wait, now and later, with `cause`. The first cause stays. */
  def fail(cause: CommException): Unit = failed.completeExceptionally(cause)

  def hasFailed: Boolean = failed.isCompletedExceptionally

  def checkNotFailed(): Unit = if (hasFailed) throw firstFailure

  /**
   * A block of rank `from`, which goes into `sink` once `ready` is complete.
   *
   * @param here the executor that this rank runs on
   */
  def fetch(
      from: Int,
      server: BlockServer,
      here: BlockServer,
      ready: CompletableFuture[Notice],
      name: String,
      sink: SegmentSink
  ): BlockFetch = {
    def broken(cause: Throwable): Unit = fail(describe(cause, s"fetch block $name from rank $from", from))
    val overNetwork = server.executorId != here.executorId
    val starter = starters.computeIfAbsent(from, _ => new SerialExecutor(node.pool))
    new BlockFetch(from, sink, overNetwork, node.clock, ready, starter, node.blocks.fetch(server, job, name, _), broken)
  }

  /**
   * Runs `work` once `ready` are complete; a failure of it is one of the session.
   *
   * @param small it takes less time than to wake another thread for it
   */
  def compute[T](what: String, small: Boolean, ready: CompletableFuture[Void]*)(work: => T): CompletableFuture[T] = {
    val run: JFunction[Void, T] = _ => work
    val all = CompletableFuture.allOf(ready: _*)
    (if (small) all.thenApply[T](run) else all.thenApplyAsync[T](run, node.pool))
      .whenComplete((_, cause) => if (cause != null) fail(describe(cause, what, rank)))
  }

  /** Waits for `done` until `deadline` of the node's clock; `late` makes the exception of a wait that took too long. */
  def await(done: CompletableFuture[_], deadline: Long)(late: => CommException): Unit =
    try node.clock.await(CompletableFuture.anyOf(done, failed), deadline)
    catch {
      case e: ExecutionException => throw (if (hasFailed) firstFailure else e.getCause)
      case _: TimeoutException => throw late
    }

  private def firstFailure: Throwable =
    try failed.join()
    catch { case e: CompletionException => e.getCause }

  private def describe(cause: Throwable, what: String, peer: Int): CommException = cause match {
    case known: CommException => known
    case wrapped: CompletionException if wrapped.getCause != null => describe(wrapped.getCause, what, peer)
    case other => new CommException(CommException.PeerLost, s"rank $rank could not $what: $other", peer, other)
  }
}
