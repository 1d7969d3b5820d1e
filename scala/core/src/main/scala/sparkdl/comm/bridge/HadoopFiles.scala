package sparkdl.comm.bridge

import java.io.{FileNotFoundException, FilterInputStream, IOException, InputStream, OutputStream}
import java.nio.file.{Files, Paths}

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileAlreadyExistsException, FileStatus, FileSystem, Path}
import org.apache.hadoop.io.IOUtils

import sparkdl.comm.CommException

/**
 * Files at any path that Hadoop reaches with this executor's settings (hdfs:, s3a:, viewfs:, file:), for a Python worker,
 * which has no Hadoop of its own. All failures are CommExceptions of the kind File that name the path.
 *
 * @param over
 *   true once nobody waits for an answer any more: a copy under way then ends, because the worker's successor may be writing
 *   to the same path by now
 */
private[bridge] final class HadoopFiles(conf: => Configuration, over: () => Boolean) {
  import HadoopFiles._

  /** Copies a local file to `remote`, in place of what is there; parents are made. Nothing is left of a copy that fails. */
  def put(local: String, remote: String): Unit = explained(s"copy $local to $remote") {
    val source = Paths.get(local)
    if (!Files.isRegularFile(source)) throw new FileNotFoundException(s"$local is not there, or is no regular file")
    val (system, target) = locate(remote)
    val from = Files.newInputStream(source)
    try copy(from, system.create(target, true), system.delete(target, false))
    finally from.close()
  }

  /** Copies the file at `remote` to a local path, in place of what is there. Nothing is left of a copy that fails. */
  def get(remote: String, local: String): Unit = explained(s"copy $remote to $local") {
    val (system, source) = locate(remote)
    val target = Paths.get(local)
    val from = system.open(source)
    try copy(from, Files.newOutputStream(target), Files.deleteIfExists(target))
    finally from.close()
  }

  /** What is in the directory `remote`, by name. */
  def list(remote: String): Seq[FileStatus] = explained(s"list $remote") {
    val (system, directory) = locate(remote)
    if (!system.getFileStatus(directory).isDirectory) throw new IOException("not a directory")
    system.listStatus(directory).toSeq.sortBy(_.getPath.getName)
  }

  /** Renames a file or directory within its file system. Hadoop would move it *into* a directory that is at `to` already. */
  def rename(from: String, to: String): Unit = explained(s"rename $from to $to") {
    val (system, source) = locate(from)
    val target = new Path(to)
    if (!system.exists(source)) throw new FileNotFoundException(s"$from is not there")
    if (system.exists(target)) throw new FileAlreadyExistsException(s"$to is there already")
    if (!system.rename(source, target))
      throw new IOException("the file system refused without a reason; does the target's parent exist?")
  }

  /** Deletes a file or directory; one that is not empty only if `recursive`. What is not there counts as deleted. */
  def delete(remote: String, recursive: Boolean): Unit = explained(s"delete $remote") {
    val (system, target) = locate(remote)
    if (!system.delete(target, recursive) && system.exists(target))
      throw new IOException("the file system refused without a reason")
  }

  def exists(remote: String): Boolean = explained(s"look at $remote") {
    val (system, path) = locate(remote)
    system.exists(path)
  }

  private def locate(remote: String): (FileSystem, Path) = {
    val path = new Path(remote)
    (path.getFileSystem(conf), path)
  }

  /** Closes `to`. */
  private def copy(from: InputStream, to: OutputStream, discard: => Unit): Unit = {
    val watched = new FilterInputStream(from) {
      override def read(buffer: Array[Byte], begin: Int, count: Int): Int =
        if (over()) throw new IOException("the Python worker left") else super.read(buffer, begin, count)
    }
    try IOUtils.copyBytes(watched, to, BufferBytes, true)
    catch {
      case NonFatal(e) =>
        try discard
        catch { case NonFatal(another) => e.addSuppressed(another) }
        throw e
    }
  }

  /**
   * File systems are plug-ins: they throw what they like, RuntimeExceptions for a class that is not there among others. An
   * Error, as a cloud store gives without its SDK, would take the whole executor with it.
   */
  private def explained[T](what: String)(body: => T): T =
    try body
    catch {
      case e @ (NonFatal(_) | _: LinkageError) =>
        throw new CommException(CommException.File, s"cannot $what: $e", cause = e)
    }
}

private[bridge] object HadoopFiles {
  private val BufferBytes = 1 << 20
}
