// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.chunks

import java.util.concurrent.CompletableFuture

import sparkdl.comm.{Clock, SystemClock}
import sparkdl.comm.transport.{
  Chunk,
  ChunkFailure,
  ChunkFetch,
  ChunkNetwork,
  ChunkPeer,
  ChunkTarget,
  MessagePart,
  PeerMessageReceiver
}

/**
 * Chunk server and client of one executor.
 *
 * @param host under which other executors reach it
 * @param executor its Spark id
 * @throws java.net.BindException if none of `portCount` ports from `firstPort` on (0: any) is free
 */
private[comm] final class ChunkNode(
    transport: ChunkTransport,
    host: String,
    executor: String,
    firstPort: Int,
    portCount: Int,
    receiver: PeerMessageReceiver,
    clock: Clock
) extends ChunkNetwork {
  private val server = transport.onFreePort(firstPort, portCount) { port =>
    val bootstraps = transport.serverBootstraps
    new ChunkServer(
      transport.transportConf,
      transport.bindAddress,
      port,
      bootstraps,
      transport,
      receiver,
      clock
    )
  }

  override val address: ChunkPeer = ChunkPeer(host, server.boundPort, executor)

  private val client =
    new ChunkClient(
      transport.transportConf,
      address,
      transport.clientBootstraps,
      clock,
      peer => receiver.onPeerLost(peer)
    )

  /** Fetches of this executor in progress. */
  def pending: Int = client.pending

  override def sending: Int = server.sending

  override def fetch(from: ChunkPeer, chunk: Chunk, into: ChunkTarget, deadline: Long)(
      done: Option[ChunkFailure] => Unit
  ): ChunkFetch = client.fetch(from, chunk, into, deadline)(done)

  override def send(to: ChunkPeer, part: MessagePart)(done: Option[Long] => Unit): Unit =
    client.send(to, part)(done)

  override def probe(peers: Iterable[ChunkPeer]): CompletableFuture[Void] = client.probe(peers)

  override def close(): Unit = {
    client.close()
    server.close()
  }
}

object ChunkNode {

  /**
   * Open the server and client of this executor.
   *
   * @param host under which other executors reach it
   * @param executor its Spark id
   * @throws java.net.BindException if none of `portCount` ports from `firstPort` on (0: any) is
   *    free
   */
  def open(
      transport: ChunkTransport,
      host: String,
      executor: String,
      firstPort: Int,
      portCount: Int,
      receiver: PeerMessageReceiver
  ): ChunkNetwork =
    new ChunkNode(transport, host, executor, firstPort, portCount, receiver, SystemClock)
}
