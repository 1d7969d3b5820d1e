package sparkdl.comm.ps

import java.util.concurrent.CompletableFuture

/**
 * One block under way from rank `from`.
 *
 * @param bytes that cross the network for it
 */
private[ps] final class Part(val from: Int, val done: CompletableFuture[Void], val bytes: Long)

/** The blocks of one batch, from all ranks that have some of it. */
private[ps] final class Flight(val parts: Seq[Part]) {
  val all: CompletableFuture[Void] = CompletableFuture.allOf(parts.map(_.done): _*)
  val bytes: Long = parts.map(_.bytes).sum
}

/**
 * A batch of gradients for this rank's shard.
 *
 * @param own completes when this rank's own gradients are final
 * @param sum completes when those of all ranks have been added up
 */
private[ps] final class Gathering(
    val slice: ShardSlice,
    val flight: Flight,
    val own: CompletableFuture[Void],
    val sum: CompletableFuture[Void]
)
